-- Drop results whose time is over. ARGV: again, now, most. Answers their number.
local found = redis.call('ZRANGEBYSCORE', BASE .. 'ended', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, name in ipairs(found) do
  local id, state, size, model = string.match(name, '^(%S+) (%S+) (%S+) (.*)$')
  redis.call('ZREM', BASE .. 'ended', name)
  if tonumber(size) then -- else it is none of ours
    forget_key(id, redis.call('HGET', task_key(id), 'key'))
    redis.call('DEL', task_key(id))
    count(state .. ':' .. model, -1)
    count('bytes', -size)
  end
end
return #found

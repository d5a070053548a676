-- Drop results whose time is over. ARGV: again, now, most. Answers their number.
local found = call('ZRANGEBYSCORE', BASE .. 'ended', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, name in ipairs(found) do
  local id, state, size, model = string.match(name, '^(%S+) (%S+) (%S+) (.*)$')
  remove(BASE .. 'ended', name)
  if tonumber(size) then -- else it is none of ours
    forget_key(id, call('HGET', task_key(id), 'key'))
    call('DEL', task_key(id))
    count(state .. ':' .. model, -1)
    count('bytes', -whole(size))
  end
end
return #found

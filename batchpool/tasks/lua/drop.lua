-- Drop results whose time is over. ARGV: again, now, most. Answers their number.
local found = call('ZRANGEBYSCORE', BASE .. 'ended', '-inf', ARGV[2], 'LIMIT', 0, ARGV[3])
for _, name in ipairs(found) do
  local id, state, size, model = string.match(name, '^(%S+) (%S+) (%S+) (.*)$')
  remove(BASE .. 'ended', name)
  if tonumber(size) then -- else it is none of ours
    local task = call('HMGET', task_key(id), 'key', 'origin', 'caller')
    forget_key(id, task[1])
    call('DEL', task_key(id))
    count(state .. ':' .. model, -1)
    hold(origin_of(task[2], task[3] or ''), -whole(size))
  end
end
if #found > 0 then
  write()
  forget_holders()
end
return #found

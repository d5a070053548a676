-- Queue tasks again whose owner gave no sign for a lease, before all others of their origins.
-- A sign from the future, after the server's clock went back, is none. ARGV: again, now, owner,
-- model, lease, most losses, most tasks, then the ids that the owner holds. Answers {'1' where there
-- may be more, tasks taken, the record of each that was lost too often}.
local now, owner, model = ARGV[2], ARGV[3], ARGV[4]
local lease, most = tonumber(ARGV[5]), tonumber(ARGV[7])
local held = {}
for at = 8, #ARGV do held[ARGV[at]] = true end
local taken, lost, at_ms = 0, {}, server_ms()
local key = run_key(model)
local found = call('ZRANGEBYSCORE', key, '-inf', at_ms - lease, 'LIMIT', 0, most)
if #found < most then
  local future = string.format('(%.0f', at_ms + lease)
  for _, id in ipairs(call('ZRANGEBYSCORE', key, future, '+inf', 'LIMIT', 0, most - #found)) do
    found[#found + 1] = id
  end
end
for _, id in ipairs(found) do
  local task = record(id)
  if task.state ~= '1' then
    remove(key, id)
  elseif task.owner == owner and held[id] then
    add(key, at_ms, id)
  else
    taken = taken + 1
    local losses = whole(call('HGET', task_key(id), 'losses')) + 1
    if losses < tonumber(ARGV[6]) then
      remove(key, id)
      call('HSET', task_key(id), 'owner', '', 'losses', losses)
      put_first(id, task)
      move(model, '1', '0')
    else
      local claim = whole(task.claims) + 1
      call('HSET', task_key(id), 'owner', owner, 'started', now, 'claims', claim, 'losses', losses)
      add(key, at_ms, id)
      lost[#lost + 1] = {id, claim, unpack(call('HMGET', task_key(id), 'attempts', 'losses', 'rows',
        'input', 'answer', 'submitted'))}
    end
  end
end
return {#found == most and '1' or '0', taken, lost}

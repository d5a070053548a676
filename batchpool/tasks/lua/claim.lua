-- Take queued tasks whose time has come, in turns by caller. ARGV: again, now, owner, model, most,
-- bytes, '1' where the first may be of more bytes. Answers the record of each.
local now, owner, model = ARGV[2], ARGV[3], ARGV[4]
local left, room, any = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] == '1'
local later, turns = BASE .. 'later:' .. model, turns_key(model)
local due = call('ZRANGEBYSCORE', later, '-inf', now, 'LIMIT', 0, left)
if #due > 0 then
  for _, id in ipairs(due) do
    remove(later, id)
    local task = record(id)
    if task.state then join(id, model, task.caller, task.rows) end -- else the server has evicted it
  end
  write()
end
local taken, claims, at_ms = 0, {}, server_ms()
local found = call('ZRANGE', turns, 0, left - 1, 'WITHSCORES')
for at = 1, #found, 2 do
  if room <= 0 and not any then break end
  local id = found[at]
  local task = call('HMGET', task_key(id), 'state', 'claims', 'attempts', 'losses', 'rows', 'input',
    'answer', 'submitted')
  local size = #(task[6] or '')
  if size > room and not any then break end
  room, any, taken = room - size, false, taken + 1
  if task[1] == '0' then
    local claim = whole(task[2]) + 1
    call('HSET', task_key(id), 'state', '1', 'claims', claim, 'owner', owner, 'started', now,
      'which', 'run')
    add(run_key(model), at_ms, id)
    claims[#claims + 1] = {id, claim, unpack(task, 3, 8)}
  end
end
if taken == 0 then return {} end
call('ZREMRANGEBYRANK', turns, 0, taken - 1)
call('SET', BASE .. 'now:' .. model, found[2 * taken])
call('ZREMRANGEBYSCORE', lines_key(model), '-inf', found[2 * taken])
forget_lines(model)
count('0:' .. model, -#claims)
count('1:' .. model, #claims)
return claims

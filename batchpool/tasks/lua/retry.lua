-- Queue claimed tasks for a later time. ARGV: again, now, owner, then {id, claim, due, counted} of
-- each. Answers 1 for each that was still that claim's.
local now, owner = tonumber(ARGV[2]), ARGV[3]
local answers = {}
for at = 4, #ARGV, 4 do
  local id, claim, due, counted = unpack(ARGV, at, at + 3)
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'claims', 'owner', 'model', 'entry', 'due',
    'caller', 'rows')
  local accepted = 0
  if task[2] == claim and task[3] == owner then
    if task[1] == '1' then
      local stream = stream_key(task[4])
      accepted = redis.call('XACK', stream, GROUP, task[5])
      if accepted == 1 then
        redis.call('XDEL', stream, task[5])
        redis.call('HINCRBY', key, 'attempts', counted)
        redis.call('HSET', key, 'losses', '0', 'due', due)
        if tonumber(due) <= now then
          join(id, task[4], task[7], task[8], false)
        else
          redis.call('ZADD', BASE .. 'later:' .. task[4], due, id)
          redis.call('HSET', key, 'state', '0', 'which', 'later', 'entry', '')
        end
        move(task[4], '1', '0')
      end
    elseif ARGV[1] == '1' and task[1] == '0' and task[6] == due then
      accepted = 1
    end
  end
  answers[#answers + 1] = accepted
end
return answers

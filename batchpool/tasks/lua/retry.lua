-- Queue claimed tasks for a later time. ARGV: again, now, owner, then {id, claim, due, counted} of
-- each. Answers 1 for each that was still that claim's.
local now, owner = tonumber(ARGV[2]), ARGV[3]
local answers = {}
for at = 4, #ARGV, 4 do
  local id, claim, due, counted_one = unpack(ARGV, at, at + 3)
  local key = task_key(id)
  local task = record(id)
  local accepted = 0
  if task.claims == claim and task.owner == owner then
    if task.state == '1' then
      accepted = 1
      take_out(id, task)
      call('HSET', key, 'losses', '0', 'due', due, 'attempts', task.attempts + counted_one)
      if tonumber(due) <= now then
        join(id, task)
      else
        add(BASE .. 'later:' .. task.model, due, id)
        call('HSET', key, 'state', '0', 'which', 'later')
      end
      move(task.model, '1', '0')
    elseif ARGV[1] == '1' and task.state == '0' and call('HGET', key, 'due') == due then
      accepted = 1
    end
  end
  answers[#answers + 1] = accepted
end
return answers

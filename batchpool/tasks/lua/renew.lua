-- Renew the leases of claims. ARGV: again, owner, then {id, claim} of each. Answers 1 for each that
-- is the owner's still. XCLAIM takes from anybody: the record says whose the claim is.
local owner = ARGV[2]
local answers = {}
for at = 3, #ARGV, 2 do
  local task = redis.call('HMGET', task_key(ARGV[at]), 'state', 'claims', 'owner', 'model', 'entry')
  local held = 0
  if task[1] == '1' and task[2] == ARGV[at + 1] and task[3] == owner then
    redis.call('XCLAIM', stream_key(task[4]), GROUP, owner, 0, task[5], 'JUSTID')
    held = 1
  end
  answers[#answers + 1] = held
end
return answers

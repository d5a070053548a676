-- Read tasks. ARGV: again, ids. Answers for each its form and its principal, {} for one that is not
-- there.
local answers = {}
local fields = {unpack(FORM)}
fields[#fields + 1] = 'principal'
for at = 2, #ARGV do
  local task = call('HMGET', task_key(ARGV[at]), unpack(fields))
  answers[#answers + 1] = task[2] and task or {}
end
return answers

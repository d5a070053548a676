-- End claimed tasks. ARGV: again, now, owner, time to live, most letters, most bytes of letters, then
-- 11 of each end. Answers 1 for each that counted: its claim was the present one until now.
local now, owner, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])
local answers = {}
for at = 7, #ARGV, 11 do
  local id, claim, state, counted_one, code, err = unpack(ARGV, at, at + 5)
  local status, headers, body, letter, facts = unpack(ARGV, at + 6, at + 10)
  local task = record(id)
  local accepted = 0
  if task.claims == claim and task.owner == owner then
    if task.state == '1' then
      accepted = 1
      local attempts = task.attempts + counted_one
      if letter ~= '0' then
        bury(letter, id, code, err, facts, attempts, now, ARGV[5], ARGV[6])
      end
      conclude(id, task, state, now, ttl, attempts, code, err, status, headers, body)
    elseif ARGV[1] == '1' and task.state == state then
      accepted = 1
    end
  end
  answers[#answers + 1] = accepted
end
return answers

-- Renew the leases of claims. ARGV: again, owner, then {id, claim} of each. Answers 1 for each that
-- is the owner's still.
local owner, at_ms = ARGV[2], server_ms()
local answers = {}
for at = 3, #ARGV, 2 do
  local id = ARGV[at]
  local task = record(id)
  local is_held = task.state == '1' and task.claims == ARGV[at + 1] and task.owner == owner
  if is_held then add(run_key(task.model), at_ms, id) end
  answers[#answers + 1] = is_held and 1 or 0
end
return answers

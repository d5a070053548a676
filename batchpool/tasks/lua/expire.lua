-- End open tasks whose deadline has passed. ARGV: again, now, time to live, most letters, most bytes
-- of letters, {code, error, status, headers, body} of the end by an own limit and of the other one,
-- then {id, number of its letter} of each. Answers {id, model, own} of each that ended.
local now, ttl = ARGV[2], tonumber(ARGV[3])
local answers = {}
for at = 16, #ARGV, 2 do
  local id = ARGV[at]
  local task = record(id)
  local limits = call('HMGET', task_key(id), 'deadline', 'own')
  if not tonumber(task.state) or not tonumber(limits[1]) then -- its record is evicted, or damaged
    remove(BASE .. 'open', id)
    remove(BASE .. 'until', id)
  elseif tonumber(task.state) < 2 and tonumber(limits[1]) <= tonumber(now) then
    local own = limits[2] == '1'
    local code, err, status, headers, body = unpack(ARGV, own and 6 or 11, own and 10 or 15)
    if not own then
      bury(ARGV[at + 1], id, code, err, '\128', task.attempts, now, ARGV[4], ARGV[5])
    end
    conclude(id, task, '3', now, ttl, task.attempts, code, err, status, headers, body)
    answers[#answers + 1] = {id, task.model, limits[2]}
  end
end
return answers

-- End open tasks whose deadline has passed. ARGV: again, now, time to live, most letters, most bytes
-- of letters, {code, error, status, headers, body} of the end by an own limit and of the other one,
-- then {id, number of its letter} of each. Answers {id, model, own} of each that ended.
local now, ttl = ARGV[2], tonumber(ARGV[3])
local answers = {}
for at = 16, #ARGV, 2 do
  local id = ARGV[at]
  local task = record(id)
  local limits = call('HMGET', task_key(id), 'deadline', 'own')
  local deadline = tonumber(limits[1])
  local is_open = task.state == '0' or task.state == '1'
  if not is_open or not deadline then -- its record is evicted, or damaged, or it has ended
    remove(BASE .. 'open', id)
    remove(BASE .. 'until', id)
  elseif deadline > tonumber(now) then
    add(BASE .. 'until', deadline, id)
  else
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

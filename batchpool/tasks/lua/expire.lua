-- End open tasks whose deadline has passed. ARGV: again, now, time to live, most letters, most bytes
-- of letters, {code, error, status, headers, body} of the end by an own limit and of the other one,
-- then {id, number of its letter} of each. Answers {id, model, own} of each that ended.
local now, ttl = ARGV[2], tonumber(ARGV[3])
local answers = {}
for at = 16, #ARGV, 2 do
  local id = ARGV[at]
  local task = redis.call('HMGET', task_key(id), 'state', 'deadline', 'own', 'which', 'entry', 'model')
  if not tonumber(task[1]) or not tonumber(task[2]) then -- its record is evicted, or damaged
    redis.call('ZREM', BASE .. 'open', id)
    redis.call('ZREM', BASE .. 'until', id)
  elseif tonumber(task[1]) < 2 and tonumber(task[2]) <= tonumber(now) then
    local own = task[3] == '1'
    local code, err, status, headers, body = unpack(ARGV, own and 6 or 11, own and 10 or 15)
    take_out(id, task[4], task[5], task[6])
    if not own then
      bury(ARGV[at + 1], id, code, err, '\128', 0, now, ARGV[4], ARGV[5])
    end
    conclude(id, '3', now, ttl, code, err, status, headers, body)
    answers[#answers + 1] = {id, task[6], task[3]}
  end
end
return answers

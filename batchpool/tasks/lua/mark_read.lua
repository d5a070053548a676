-- Callers have these results. ARGV: again, the time (ms) at which they are dropped, ids. A failed task
-- is no result that somebody has got: it keeps its time.
local answers = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local task = redis.call('HMGET', task_key(id), 'state', 'model', 'size')
  if task[1] == '2' then
    redis.call('ZADD', BASE .. 'ended', 'XX', 'LT', ARGV[2],
      ended_name(id, task[1], task[3], task[2]))
  end
  answers[#answers + 1] = 1
end
return answers

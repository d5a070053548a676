-- Read results. ARGV: again, '' or the time (ms) at which a result that was read is dropped, ids.
-- Answers for each {principal, status, headers, body, form}, {} for one that is not there.
local answers = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'model', 'size', 'principal')
  if not task[1] then
    answers[#answers + 1] = {}
  else
    -- A failed task is no result that somebody has got: it keeps its time.
    if task[1] == '2' and ARGV[2] ~= '' then
      redis.call('ZADD', BASE .. 'ended', 'XX', 'LT', ARGV[2],
        ended_name(id, task[1], task[3], task[2]))
    end
    local answer = redis.call('HMGET', key, 'status', 'headers', 'body')
    answers[#answers + 1] = {task[4], answer[1] or '0', answer[2] or '', answer[3] or '',
      redis.call('HMGET', key, unpack(FORM))}
  end
end
return answers

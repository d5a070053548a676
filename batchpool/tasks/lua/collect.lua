-- Read results. ARGV: again, the most bytes of a body that comes with the rest, ids. Answers for each
-- {principal, status, headers, body, whether the body is longer, form}, {} for one that is not there.
local answers = {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'principal', 'status', 'headers')
  if not task[1] then
    answers[#answers + 1] = {}
  else
    local is_long = redis.call('HSTRLEN', key, 'body') > tonumber(ARGV[2])
    answers[#answers + 1] = {task[2], task[3] or '0', task[4] or '',
      not is_long and redis.call('HGET', key, 'body') or '', is_long and 1 or 0,
      redis.call('HMGET', key, unpack(FORM))}
  end
end
return answers

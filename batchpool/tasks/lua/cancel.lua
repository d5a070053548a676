-- Take back open tasks, drop those that have ended. ARGV: again, now, time to live, ids. Answers the
-- form of each as it was before, {} for one that is not there.
local now, ttl = ARGV[2], tonumber(ARGV[3])
local answers = {}
for at = 4, #ARGV do
  local id = ARGV[at]
  local key = task_key(id)
  local task = record(id)
  local state = task.state
  if not state or state == '4' then
    answers[#answers + 1] = {}
  else
    answers[#answers + 1] = call('HMGET', key, unpack(FORM))
    forget_key(id, task.key)
    if state == '0' or state == '1' then
      task.key = ''
      call('HSET', key, 'key', '')
      conclude(id, task, '4', now, ttl, task.attempts, '', '', '0', '', '')
    else
      call('DEL', key)
      remove(BASE .. 'ended', ended_name(id, state, task.size, task.model))
      count(state .. ':' .. task.model, -1)
      hold(task.origin, -task.size)
    end
  end
end
return answers

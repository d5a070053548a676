-- Take back open tasks, drop those that have ended. ARGV: again, now, time to live, ids. Answers the
-- form of each as it was before, {} for one that is not there.
local now, ttl = ARGV[2], tonumber(ARGV[3])
local answers = {}
for at = 4, #ARGV do
  local id = ARGV[at]
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'which', 'entry', 'model', 'size', 'key', 'origin', 'caller')
  local state = task[1]
  if not state or state == '4' then
    answers[#answers + 1] = {}
  else
    answers[#answers + 1] = redis.call('HMGET', key, unpack(FORM))
    forget_key(id, task[6])
    if state == '0' or state == '1' then
      take_out(id, task[2], task[3], task[4])
      redis.call('HSET', key, 'key', '')
      conclude(id, '4', now, ttl, '', '', '0', '', '')
    else
      redis.call('DEL', key)
      redis.call('ZREM', BASE .. 'ended', ended_name(id, state, task[5], task[4]))
      count(state .. ':' .. task[4], -1)
      hold(origin_of(task[7], task[8]), -task[5])
    end
  end
end
return answers

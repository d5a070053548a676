-- End claimed tasks. ARGV: again, now, owner, time to live, most letters, most bytes of letters, then
-- 11 of each end. Answers 1 for each that counted: its claim is the present one, and the entry was
-- pending until now.
local now, owner, ttl = ARGV[2], ARGV[3], tonumber(ARGV[4])
local answers = {}
for at = 7, #ARGV, 11 do
  local id, claim, state, counted, code, err = unpack(ARGV, at, at + 5)
  local status, headers, body, letter, facts = unpack(ARGV, at + 6, at + 10)
  local key = task_key(id)
  local task = redis.call('HMGET', key, 'state', 'claims', 'owner', 'model', 'entry')
  local accepted = 0
  if task[2] == claim and task[3] == owner then
    if task[1] == '1' then
      local stream = stream_key(task[4])
      accepted = redis.call('XACK', stream, GROUP, task[5])
      if accepted == 1 then
        redis.call('XDEL', stream, task[5])
        if letter ~= '0' then
          bury(letter, id, code, err, facts, counted, now, ARGV[5], ARGV[6])
        end
        redis.call('HINCRBY', key, 'attempts', counted)
        conclude(id, state, now, ttl, code, err, status, headers, body)
      end
    elseif ARGV[1] == '1' and task[1] == state then
      accepted = 1
    end
  end
  answers[#answers + 1] = accepted
end
return answers

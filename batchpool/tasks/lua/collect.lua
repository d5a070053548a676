-- Read results. ARGV: again, the most bytes of a body that comes with the rest, ids. Answers for each
-- {principal, status, headers, body, whether the body is longer, form}, {} for one that is not there.
local answers = {}
local fields = {unpack(FORM)}
for _, name in ipairs({'principal', 'status', 'headers', 'length'}) do fields[#fields + 1] = name end
for at = 3, #ARGV do
  local key = task_key(ARGV[at])
  local task = call('HMGET', key, unpack(fields))
  if not task[2] then
    answers[#answers + 1] = {}
  else
    local length = whole(task[13])
    local is_long = length > tonumber(ARGV[2])
    local body = length > 0 and not is_long and call('HGET', key, 'body') or ''
    answers[#answers + 1] = {task[10], task[11] or '0', task[12] or '', body, is_long and 1 or 0,
      {unpack(task, 1, 9)}}
  end
end
return answers

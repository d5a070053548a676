-- Keep new tasks. ARGV: again, now, then 14 of each task: as in `create`, and the limit that keeps
-- it out, '' for none. Answers for each {'new'}, {'mismatch'}, {limit} or {'known', principal, form}.
local answers = {}
for at = 3, #ARGV, 14 do
  local task = {unpack(ARGV, at, at + 12)}
  local lack = ARGV[at + 13]
  local id, key = task[1], task[11]
  local known = key ~= '' and call('GET', BASE .. 'i:' .. key)
  if not known or call('EXISTS', task_key(known)) == 0 then
    known = call('EXISTS', task_key(id)) == 1 and id
  end
  local print = known and call('HGET', task_key(known), 'print')
  if print then
    if key ~= '' and print ~= task[12] then
      answers[#answers + 1] = {'mismatch'}
    else
      local principal = call('HGET', task_key(known), 'principal')
      answers[#answers + 1] = {'known', principal, call('HMGET', task_key(known), unpack(FORM))}
    end
  elseif lack ~= '' then
    answers[#answers + 1] = {lack}
  else
    create(task)
    answers[#answers + 1] = {'new'}
  end
end
return answers

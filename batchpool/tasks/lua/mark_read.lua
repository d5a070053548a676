-- Callers have these results. ARGV: again, the time (ms) at which they are dropped, ids. A failed task
-- is no result that somebody has got: it keeps its time.
local answers, words = {}, {}
for at = 3, #ARGV do
  local id = ARGV[at]
  local task = call('HMGET', task_key(id), 'state', 'model', 'size')
  if task[1] == '2' then
    words[#words + 1] = ARGV[2]
    words[#words + 1] = ended_name(id, task[1], task[3] or '', task[2] or '')
  end
  answers[#answers + 1] = 1
end
for at = 1, #words, WORDS_MOST do
  local last = math.min(at + WORDS_MOST - 1, #words)
  call('ZADD', BASE .. 'ended', 'XX', 'LT', unpack(words, at, last))
end
return answers

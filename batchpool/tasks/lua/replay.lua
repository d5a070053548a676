-- Make a task of a dead letter, which is then gone. ARGV: again, now, letter, new id, deadline.
-- Answers 1, or 0 where there is no such letter.
local letter = ARGV[3]
local kept = call('HMGET', BASE .. 'l:' .. letter, 'model', 'rows', 'input', 'answer', 'caller',
  'principal', 'origin')
if not kept[1] then return 0 end
for at = 2, 6 do kept[at] = kept[at] or '' end
remove_letter(letter)
create({ARGV[4], kept[1], kept[2], kept[3], kept[4], kept[5], kept[6], ARGV[2], ARGV[5], '0', '', '',
  origin_of(kept[7] or '', kept[5])})
return 1

-- Drop a dead letter. ARGV: again, letter. Answers 1, or 0 where there is none.
local was_there = remove_letter(ARGV[2])
return was_there and 1 or 0

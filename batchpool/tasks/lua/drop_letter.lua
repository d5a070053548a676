-- Drop a dead letter. ARGV: again, letter. Answers 1, or 0 where there is none.
return remove_letter(ARGV[2]) and 1 or 0

-- Numbers for dead letters. COUNTS: their counter. ARGV: again, how many. Answers the last one. A
-- counter that is none goes on at the time, which is more than all that were given.
local found = redis.pcall('INCRBY', COUNTS, ARGV[2])
if type(found) == 'number' then return found end
call('UNLINK', COUNTS)
return redis.call('INCRBY', COUNTS, server_ms())

-- A sign of life. COUNTS: the owners by their last one. ARGV: again, now, owner, the time before
-- which an owner has gone. Answers the owners that live.
call('ZADD', COUNTS, ARGV[2], ARGV[3])
redis.call('ZREMRANGEBYSCORE', COUNTS, '-inf', '(' .. ARGV[4])
return redis.call('ZRANGE', COUNTS, 0, -1)

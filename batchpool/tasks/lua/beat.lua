-- A sign of life. KEYS[1]: the owners by their last one. ARGV: again, now, owner, the time before
-- which an owner has gone. Answers the owners that live.
redis.call('ZADD', KEYS[1], ARGV[2], ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[4])
return redis.call('ZRANGE', KEYS[1], 0, -1)

-- Numbers for dead letters. KEYS[1]: their counter. ARGV: again, how many. Answers the last one.
return redis.call('INCRBY', KEYS[1], ARGV[2])

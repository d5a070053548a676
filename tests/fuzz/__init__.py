"""A fuzzer of request bodies: valid ones in every form, broken at random, and a slow second decoder
that says what each of them means."""

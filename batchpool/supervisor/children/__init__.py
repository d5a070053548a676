"""One child process: its handle, its restarts, its liveness."""

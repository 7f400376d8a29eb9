"""What ends a job before its time: signals, a process that hangs, a disk that is full."""

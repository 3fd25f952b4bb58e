"""The benchmark against other libraries, in the order in which a run calls it.

run.py        options; measure, or read what was measured; show, judge, write
cases         what is measured, and the targets of each case
rounds        starts a worker process for each library, and times them in turn
worker        the process of one library: prepares a case, times calls as told
problems      a case as arrays
peers/        one adapter for each library: how it is called
limits        the loops that bound every library: fused multiply-add, read, copy
judge         times into ratios, and ratios against targets
report        table and plot
"""

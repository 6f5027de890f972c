/* What the engine can be tuned by. Measured by `tow bench device` and
 * `collective_bench`, on two cores. */
#ifndef TOW_COLLECTIVE_HOST_TUNING_H_
#define TOW_COLLECTIVE_HOST_TUNING_H_

/* Bytes of one half of a mailbox. Chunks of larger collectives go through it, so
 * all halves in use should fit into the last-level cache together: 8 devices
 * take 4 MiB. Too small and the two meetings per chunk dominate. */
#define TOW_HOST_STAGE_BYTES (256u << 10)

/* An all-reduce up to here is combined whole by every member after one meeting;
 * above it each combines a slice, which takes a second meeting. */
#define TOW_HOST_WHOLE_BYTES_MAX (16u << 10)

/* Looks at a mailbox before the core is offered to others. A neighbour that
 * runs answers within a few hundred nanoseconds. */
#define TOW_HOST_SPIN_COUNT 200
/* Offers of the core before sleeping. */
#define TOW_HOST_YIELD_COUNT 200
/* The same with more members than cores: whoever we wait for needs ours, so
 * nobody spins. While the cores are the gang's alone an offer is the cheapest way
 * to let the next member run: eight members on two cores did 19,000 steps a
 * second with 300 offers, 12,400 with 3. But where others want the cores, an
 * offer gives away a whole slice of theirs, and sleeping is better, for whoever
 * is woken goes first. So an offer that took longer than LONG_YIELD_NS, which
 * none within a gang of small steps does, makes the process's members go to
 * sleep after a few for CROWDED_NS. */
#define TOW_HOST_GANG_YIELD_COUNT    300
#define TOW_HOST_CROWDED_YIELD_COUNT 3
#define TOW_HOST_LONG_YIELD_NS       200000
#define TOW_HOST_CROWDED_NS          5000000
/* Readers that are late say nothing when they come: for so long we look all the
 * time, and then every SLEEP_NS. */
#define TOW_HOST_READERS_AWAKE_NS 10000000
/* Bells that gangs share by their keys: more than gangs that meet at once. */
#define TOW_HOST_BELL_COUNT 64
/* A sleeper is woken; this only bounds how late it sees an abort. */
#define TOW_HOST_SLEEP_NS 2000000

/* How often a process says that it lives, and how long its silence is borne. An
 * error within 3 s is asked for. */
#define TOW_HOST_HEARTBEAT_NS 100000000
#define TOW_HOST_PATIENCE_NS  2000000000
/* What a member put for others in an earlier run, and nobody has taken, stands in its
 * way for so long. They may be that late: a device that only sends runs ahead of
 * those that it sends to. Or their run has failed where nobody told this host, and
 * they never come. */
#define TOW_HOST_UNREAD_NS 30000000000ll
/* How long a device may take to appear after others wait for it: its process
 * may just be starting. */
#define TOW_HOST_ABSENCE_NS 2500000000

/* A wait is told to those who ask after this long, and looked at again as often.
 * Far above what any collective that goes well takes, so that those never come
 * here; far below the patience of people. */
#define TOW_HOST_LONG_WAIT_NS 100000000

/* Aborted runs that are remembered. An abort is seen within milliseconds by all
 * that wait, so few can be live at a time. */
#define TOW_HOST_ABORT_COUNT 64
/* Of what is said of one: the text of a run that was given up has to fit. */
#define TOW_HOST_REASON_BYTES 1020

#endif /* TOW_COLLECTIVE_HOST_TUNING_H_ */

/* The numbers of the simulated device that someone may want to change: what
 * each one bounds, and what happens when it is wrong. */
#ifndef TOW_DEVICE_SIM_TUNING_H_
#define TOW_DEVICE_SIM_TUNING_H_

/* Buffers up to this size keep the bytes that were uploaded, and give them
 * back. Larger ones keep one number instead (README.md, "Simulated values"), so
 * that thousands of devices full of weights fit into one process. */
#define TOW_SIM_CONTENT_BYTES_MAX (64u << 10)

/* Runs that may be queued on one device, and transfers in one direction of its
 * host link, or out of it to other devices. One more is RESOURCE_EXHAUSTED: a scheduler that runs so far ahead
 * is broken, and would only be noticed by its memory. */
#define TOW_SIM_QUEUED_RUNS_MAX      65536u
#define TOW_SIM_QUEUED_TRANSFERS_MAX 65536u

/* Devices of one driver, and of one program's assignment. */
#define TOW_SIM_DEVICE_COUNT_MAX 65536u

/* A program's text, and what it may hold. Real programs have a few hundred
 * arguments and collectives. */
#define TOW_SIM_COST_TEXT_BYTES_MAX (1u << 20)
#define TOW_SIM_COST_NAME_MAX       255u
#define TOW_SIM_COST_ARRAYS_MAX     4096u /* arguments, and results */
#define TOW_SIM_COST_STEPS_MAX      4096u

/* A file of device models. */
#define TOW_SIM_MODEL_FILE_BYTES_MAX (1u << 20)

/* Aborted gangs that a fabric remembers, so that members whose abort is still on
 * its way are not taken for a deadlock. Older ones would be. */
#define TOW_SIM_ABORTED_GANGS_MAX 1024u

/* Names that one message about stuck gangs shows before it says "and n more". */
#define TOW_SIM_SHOWN_DEVICES_MAX 8u
#define TOW_SIM_SHOWN_GANGS_MAX   8u

#endif /* TOW_DEVICE_SIM_TUNING_H_ */

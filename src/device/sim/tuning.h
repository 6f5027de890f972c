/* Constants of simulated devices that someone may tune. */
#ifndef TOW_DEVICE_SIM_TUNING_H_
#define TOW_DEVICE_SIM_TUNING_H_

/* Buffers up to this size keep the uploaded bytes. Larger ones keep one number
 * instead (README.md, "Simulated values"), so that thousands of devices full of
 * weights fit into one process. */
#define TOW_SIM_CONTENT_BYTES_MAX (64u << 10)

/* Runs in the queue of one device, and transfers in one direction of its host
 * link or out of it to other devices. More are RESOURCE_EXHAUSTED: they reveal
 * a scheduler without back-pressure. */
#define TOW_SIM_QUEUED_RUNS_MAX      65536u
#define TOW_SIM_QUEUED_TRANSFERS_MAX 65536u

/* Devices of one driver, and of one program's assignment. */
#define TOW_SIM_DEVICE_COUNT_MAX 65536u

/* Limits of a cost program. Real programs have a few hundred arguments and
 * collectives. */
#define TOW_SIM_COST_TEXT_BYTES_MAX (1u << 20)
#define TOW_SIM_COST_NAME_MAX       255u
#define TOW_SIM_COST_ARRAYS_MAX     4096u /* arguments, and results */
#define TOW_SIM_COST_STEPS_MAX      4096u

/* A file of device models. */
#define TOW_SIM_MODEL_FILE_BYTES_MAX (1u << 20)

/* Aborted gangs that a fabric remembers, so that members which are not aborted
 * yet are not reported as a deadlock. */
#define TOW_SIM_ABORTED_GANGS_MAX 1024u

/* Names in one message about stuck gangs, before "and n more". */
#define TOW_SIM_SHOWN_DEVICES_MAX 8u
#define TOW_SIM_SHOWN_GANGS_MAX   8u

#endif /* TOW_DEVICE_SIM_TUNING_H_ */

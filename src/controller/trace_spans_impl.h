/* Trace spans as lines of text: see TOW_REPORT_SPANS. */
#ifndef TOW_CONTROLLER_TRACE_SPANS_IMPL_H_
#define TOW_CONTROLLER_TRACE_SPANS_IMPL_H_

#include <jansson.h>

/* Writes Perfetto events, except those without a duration. The text is from
 * malloc; NULL: no memory. */
char *tow_ctl_trace_spans_write(const json_t *events);

#endif /* TOW_CONTROLLER_TRACE_SPANS_IMPL_H_ */

/* Trace events as lines of text: see TOW_REPORT_SPANS. */
#ifndef TOW_CONTROLLER_SPANS_IMPL_H_
#define TOW_CONTROLLER_SPANS_IMPL_H_

#include <jansson.h>

/* Of events as Perfetto reads them; those without a duration are left out. The
 * text is malloc's; NULL: no memory. */
char *tow_spans_write(const json_t *events);

#endif /* TOW_CONTROLLER_SPANS_IMPL_H_ */

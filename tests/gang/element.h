/* Elements of every type that a collective carries, from and to plain numbers.
 * For small whole numbers, which all types hold exactly; integers wrap. */
#ifndef TOW_TESTS_GANG_ELEMENT_H_
#define TOW_TESTS_GANG_ELEMENT_H_

#include <complex.h>
#include <stdbool.h>
#include <stddef.h>

#include "device/device.h"

typedef struct element_kind {
    const char *name; /* in MLIR */
    tow_type_t type;  /* numbered as PJRT_Buffer_Type */
    size_t bytes;
    bool is_signed;
    bool is_complex;
} element_kind_t;

extern const element_kind_t ELEMENT_KINDS[];
extern const size_t ELEMENT_KIND_COUNT;

/* Of PRED anything but zero is true. */
void element_write(const element_kind_t *kind, double complex value, void *out);

typedef enum element_reduction {
    ELEMENT_SUM,     /* PRED: or */
    ELEMENT_PRODUCT, /* PRED: and */
    ELEMENT_MIN,
    ELEMENT_MAX,
    ELEMENT_REDUCTION_COUNT,
} element_reduction_t;

/* Complex numbers have no order. */
bool element_can(const element_kind_t *kind, element_reduction_t reduction);
double complex element_reduce(const element_kind_t *kind,
                              element_reduction_t reduction, double complex a,
                              double complex b);

/* Element `index` of what member `rank` of four sends. */
double complex element_sent(const element_kind_t *kind, size_t rank,
                            size_t index);

#endif /* TOW_TESTS_GANG_ELEMENT_H_ */

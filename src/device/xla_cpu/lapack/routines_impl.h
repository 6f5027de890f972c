/* The routines, by what they are for. Each is described in LAPACK's own words.
 */
#ifndef TOW_DEVICE_XLA_CPU_LAPACK_ROUTINES_IMPL_H_
#define TOW_DEVICE_XLA_CPU_LAPACK_ROUTINES_IMPL_H_

#include "device/xla_cpu/lapack/call_impl.h"

/* factor.c */
extern const tow_lapack_routine_t tow_lapack_getrf; /* LU */
extern const tow_lapack_routine_t tow_lapack_potrf; /* Cholesky */
extern const tow_lapack_routine_t tow_lapack_geqrf; /* QR */
extern const tow_lapack_routine_t tow_lapack_geqp3; /* QR with pivots */
extern const tow_lapack_routine_t tow_lapack_orgqr; /* the Q of a QR */
extern const tow_lapack_routine_t tow_lapack_ormqr; /* a product with it */

/* solve.c */
extern const tow_lapack_routine_t tow_lapack_trsm;  /* triangular */
extern const tow_lapack_routine_t tow_lapack_gtsv;  /* tridiagonal */
extern const tow_lapack_routine_t tow_lapack_lagts; /* the same, perturbed */

/* eigen.c */
extern const tow_lapack_routine_t tow_lapack_syevd; /* of symmetric matrices */
extern const tow_lapack_routine_t tow_lapack_geev;  /* of any */
extern const tow_lapack_routine_t tow_lapack_gees;  /* Schur */
extern const tow_lapack_routine_t tow_lapack_gehrd; /* to Hessenberg form */
extern const tow_lapack_routine_t tow_lapack_sytrd; /* to tridiagonal form */

/* svd.c */
extern const tow_lapack_routine_t tow_lapack_gesdd; /* divide and conquer */
extern const tow_lapack_routine_t tow_lapack_gesvd; /* QR iteration */

/* What a routine leaves in `info` for an illegal value in its fourth argument,
 * the matrix. JAX makes the results of any info but 0 not a number. */
#define TOW_LAPACK_NOT_FINITE (-4)

#endif /* TOW_DEVICE_XLA_CPU_LAPACK_ROUTINES_IMPL_H_ */

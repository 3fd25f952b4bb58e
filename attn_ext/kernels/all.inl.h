/* The kernels of one type and one instruction set, in the order in which they build on each other.
 * The words of the instruction set come before this file.
 */
#include "kernels/elementary.inl.h"
#include "kernels/access.inl.h"
#include "kernels/microkernel.inl.h"
#include "kernels/group.inl.h"
#include "kernels/result.inl.h"
#include "kernels/score.inl.h"
#include "kernels/panel.inl.h"
#include "kernels/tile.inl.h"
#include "kernels/few_steps.inl.h"
#include "kernels/few.inl.h"
#include "kernels/attention.inl.h"
#include "kernels/exponential.inl.h"
#include "kernels/rows.inl.h"
#include "kernels/softmax_along.inl.h"
#include "kernels/softmax_across.inl.h"
#include "kernels/reduction.inl.h"

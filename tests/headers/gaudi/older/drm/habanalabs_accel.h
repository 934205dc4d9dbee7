/* SPDX-License-Identifier: MIT
 * For hosts whose kernel headers are older than Linux 6.3, as hlthunk.h includes this name. Of the
 * two additions haul uses nothing. */
#include <misc/habanalabs.h>

#define HL_RAZWI_MAX_NUM_OF_ENGINES_PER_RTR 16
enum hl_info_fw_err_type { HL_INFO_FW_ERR_NONE };

# Is the metrics module built (src/metrics)? Only it links the library.
find_path(HAUL_MICROHTTPD_INCLUDE microhttpd.h)
find_library(HAUL_MICROHTTPD_LIBRARY microhttpd)
set(HAUL_METRICS ON)
if(NOT HAUL_MICROHTTPD_INCLUDE OR NOT HAUL_MICROHTTPD_LIBRARY)
  set(HAUL_METRICS OFF)
  message(STATUS "haul is built without metrics over HTTP (haul serve --metrics): "
    "sudo apt-get install libmicrohttpd-dev")
endif()

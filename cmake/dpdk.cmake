# DPDK's headers, for a test that is a DPDK application and for a bench. The library opens librte_eal at
# run time and needs no headers.
find_path(HAUL_DPDK_INCLUDE rte_mempool.h PATH_SUFFIXES dpdk)
find_path(HAUL_DPDK_CONFIG rte_build_config.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/dpdk dpdk)
set(HAUL_DPDK_LIBRARIES)
foreach(name eal mempool ring mbuf)
  find_library(HAUL_DPDK_${name} rte_${name})
  list(APPEND HAUL_DPDK_LIBRARIES ${HAUL_DPDK_${name}})
endforeach()
set(HAUL_DPDK_HEADERS OFF)
if(HAUL_DPDK_INCLUDE AND HAUL_DPDK_CONFIG AND NOT "${HAUL_DPDK_LIBRARIES}" MATCHES "NOTFOUND")
  set(HAUL_DPDK_HEADERS ON)
endif()

if(HAUL_DPDK_HEADERS)
  add_library(haul_dpdk_headers INTERFACE)
  target_include_directories(haul_dpdk_headers SYSTEM INTERFACE ${HAUL_DPDK_INCLUDE} ${HAUL_DPDK_CONFIG})
  # Flags of pkg-config --cflags libdpdk; the second one on x86.
  target_compile_options(haul_dpdk_headers INTERFACE -include rte_config.h)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(haul_dpdk_headers INTERFACE -march=corei7)
  endif()
  target_link_libraries(haul_dpdk_headers INTERFACE ${HAUL_DPDK_LIBRARIES})
endif()

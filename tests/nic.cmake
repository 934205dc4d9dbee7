# The transport rdma: NICs that are doubles, and the tests over them.

# Each variant of a double has the real file's name, in a folder of its own.
function(haul_double_of_ibverbs name symbols)
  add_library(ibverbs_${name} SHARED ${ARGN})
  target_link_libraries(ibverbs_${name} PRIVATE haul_options)
  target_include_directories(ibverbs_${name} SYSTEM PRIVATE ${HAUL_VERBS_INCLUDE})
  target_link_options(ibverbs_${name} PRIVATE
    -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/doubles/${symbols})
  set_target_properties(ibverbs_${name} PROPERTIES OUTPUT_NAME ibverbs VERSION 1 SOVERSION 1
    C_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${HAUL_DOUBLES}/ibverbs/${name}
    LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/doubles/${symbols})
  add_dependencies(haul_test_support ibverbs_${name})
endfunction()

file(GLOB HAUL_IBVERBS CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/doubles/ibverbs/*.c)
haul_double_of_ibverbs(current ibverbs/symbols.map ${HAUL_IBVERBS})
haul_double_of_ibverbs(33 ibverbs/without-dmabuf.map ${HAUL_IBVERBS})
haul_double_of_ibverbs(31 ibverbs/without-gid-ex.map ${HAUL_IBVERBS})

# The same objects, and bytes that move between the processes of this host.
file(GLOB HAUL_IBVERBS_MOVING CONFIGURE_DEPENDS
  ${CMAKE_CURRENT_SOURCE_DIR}/doubles/ibverbs-moving/*.c)
list(FILTER HAUL_IBVERBS EXCLUDE REGEX "/still\\.c$")
haul_double_of_ibverbs(moving ibverbs-moving/symbols.map ${HAUL_IBVERBS} ${HAUL_IBVERBS_MOVING})
set(HAUL_WITH_NIC ${CMAKE_CURRENT_SOURCE_DIR}/doubles/ibverbs-moving/with ${HAUL_DOUBLES})
target_include_directories(haul_test_support SYSTEM PUBLIC ${HAUL_VERBS_INCLUDE})

# A NIC that takes dma-bufs, to be preloaded; the virtual machine has the rest of it.
file(GLOB HAUL_DMABUF_NIC CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/doubles/dmabuf-nic/*.c)
add_library(dmabuf_nic MODULE ${HAUL_DMABUF_NIC})
target_link_libraries(dmabuf_nic PRIVATE haul_options Threads::Threads ${CMAKE_DL_LIBS})
target_include_directories(dmabuf_nic SYSTEM PRIVATE ${HAUL_VERBS_INCLUDE})
target_link_options(dmabuf_nic PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/doubles/dmabuf-nic/symbols.map)
set_target_properties(dmabuf_nic PROPERTIES OUTPUT_NAME dmabuf-nic C_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY ${HAUL_DOUBLES}
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/doubles/dmabuf-nic/symbols.map)
add_dependencies(haul_test_support dmabuf_nic)

list(APPEND HAUL_BY_VARIANT rdma.gpu)
haul_test_folder(rdma ${HAUL_WITH_NIC})
haul_add_test(rdma.gpu COMMAND ${HAUL_WITH_GPU} ${HAUL_WITH_NIC} $<TARGET_FILE:rdma_gpu>)
if(HAUL_STORAGE)
  haul_add_test(storage.devices_rdma_double # the NIC of a file server reaches GPUs
    COMMAND ${HAUL_WITH_GPU} ${HAUL_WITH_NIC} $<TARGET_FILE:storage_devices> rdma
    ENVIRONMENT HAUL_TEST_SLOW=1)
  haul_add_test(storage.mounted_devices_rdma_double
    COMMAND ${HAUL_WITH_GPU} ${HAUL_WITH_NIC} $<TARGET_FILE:storage_mounted_devices> rdma
    ENVIRONMENT HAUL_TEST_SLOW=1 ${library})
endif()

# The transports' suites over the double of a NIC, and a node's life with one: forks, closes,
# allocations that fail. HAUL_TEST_SLOW gives the bounds of slow machines, as the double's threads
# take processor time that a NIC does not.
function(haul_test_with_nic name)
  haul_add_test(${name}_rdma_double ${ARGN} ENVIRONMENT HAUL_TEST_SLOW=1)
endfunction()
haul_test_with_nic(conformance.transport
  COMMAND ${HAUL_WITH_NIC} $<TARGET_FILE:conformance_transport> rdma tcp://127.0.0.1:0)
haul_test_with_nic(conformance.transport_faults
  COMMAND ${HAUL_WITH_NIC} $<TARGET_FILE:conformance_transport_faults> rdma tcp://127.0.0.1:0)
haul_test_with_nic(conformance.atomics
  COMMAND ${HAUL_WITH_NIC} $<TARGET_FILE:conformance_atomics> rdma tcp://127.0.0.1:0)
foreach(name life names oom priorities)
  haul_test_with_nic(node.${name} NIGHTLY COMMAND ${HAUL_WITH_NIC} $<TARGET_FILE:node_${name}>)
endforeach()

haul_add_test(node.offers_rdma_double
  COMMAND ${HAUL_WITH_GPU} ${HAUL_WITH_NIC} $<TARGET_FILE:node_offers> rdma
  ENVIRONMENT "HAUL_TEST_PLACES=host sim:0 cuda:0" HAUL_DOUBLE_FAULT=dmabuf HAUL_CUDA_DOUBLE=dmabuf=2
    HAUL_TEST_SLOW=1)

# With device memory, from a double too.
haul_add_test(conformance.transport_gaudi_rdma_double NIGHTLY
  COMMAND ${HAUL_WITH_GAUDI} ${HAUL_WITH_NIC} $<TARGET_FILE:conformance_transport> rdma
    tcp://127.0.0.1:0 brief
  ENVIRONMENT HAUL_TEST_DEVICE=gaudi:0 HAUL_TEST_OWNER_DEVICE=gaudi:1)
haul_add_test(conformance.transport_cuda_double_rdma NIGHTLY
  COMMAND ${HAUL_WITH_GPU} ${HAUL_WITH_NIC} $<TARGET_FILE:conformance_transport> rdma
    tcp://127.0.0.1:0 brief
  ENVIRONMENT HAUL_TEST_SLOW=1)
haul_add_test(rdma.places_doubles
  COMMAND ${HAUL_WITH_GAUDI} ${HAUL_WITH_GPU} ${HAUL_WITH_NIC} $<TARGET_FILE:rdma_places>
  ENVIRONMENT "HAUL_TEST_PLACES=host sim:0 cuda:0 gaudi:0")

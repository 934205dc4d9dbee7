# The target haul_cmocka: cmocka, or its replacement in compat, which must fail where cmocka does.
find_path(HAUL_CMOCKA_INCLUDE cmocka.h)
find_library(HAUL_CMOCKA_LIBRARY cmocka)

add_library(haul_cmocka_compat STATIC compat/cmocka.c)
target_link_libraries(haul_cmocka_compat PRIVATE haul_options)
target_include_directories(haul_cmocka_compat PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
  INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/compat)

add_library(haul_cmocka INTERFACE)
if(HAUL_CMOCKA_INCLUDE AND HAUL_CMOCKA_LIBRARY)
  target_include_directories(haul_cmocka SYSTEM INTERFACE ${HAUL_CMOCKA_INCLUDE})
  target_link_libraries(haul_cmocka INTERFACE ${HAUL_CMOCKA_LIBRARY})
else()
  message(STATUS "cmocka is missing (sudo apt-get install libcmocka-dev): tests use the replacement in tests/compat")
  target_link_libraries(haul_cmocka INTERFACE haul_cmocka_compat)
endif()

foreach(framework cmocka_compat cmocka)
  add_executable(compat_${framework} compat/fails.c)
  target_link_libraries(compat_${framework} PRIVATE haul_options haul_${framework})
  haul_add_test(compat.${framework} LABEL unit COMMAND compat_${framework})
endforeach()

# The target haul_cmocka: cmocka, or where it is missing the stand-in, which must fail where cmocka does.
find_path(HAUL_CMOCKA_INCLUDE cmocka.h)
find_library(HAUL_CMOCKA_LIBRARY cmocka)

add_library(haul_cmocka_standin STATIC standin/cmocka.c)
target_link_libraries(haul_cmocka_standin PRIVATE haul_options)
target_include_directories(haul_cmocka_standin PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}
  INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/standin)

add_library(haul_cmocka INTERFACE)
if(HAUL_CMOCKA_INCLUDE AND HAUL_CMOCKA_LIBRARY)
  target_include_directories(haul_cmocka SYSTEM INTERFACE ${HAUL_CMOCKA_INCLUDE})
  target_link_libraries(haul_cmocka INTERFACE ${HAUL_CMOCKA_LIBRARY})
else()
  message(STATUS "cmocka is missing (sudo apt-get install libcmocka-dev): tests use a small stand-in")
  target_link_libraries(haul_cmocka INTERFACE haul_cmocka_standin)
endif()

foreach(framework cmocka_standin cmocka)
  add_executable(standin_${framework} standin/fails.c)
  target_link_libraries(standin_${framework} PRIVATE haul_options haul_${framework})
  add_test(NAME standin.${framework} COMMAND standin_${framework})
  set_tests_properties(standin.${framework} PROPERTIES LABELS unit TIMEOUT 60)
endforeach()

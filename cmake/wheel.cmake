# What differs in a wheel. scikit-build-core sets SKBUILD (pyproject.toml).
if(NOT SKBUILD)
  return()
endif()
add_compile_options(-include ${CMAKE_SOURCE_DIR}/cmake/wheel.h)
set(HAUL_LICENSES "" CACHE PATH "A folder with the licences of the libraries that tools/wheel adds")
if(HAUL_LICENSES)
  install(DIRECTORY ${HAUL_LICENSES}/ DESTINATION licenses COMPONENT runtime)
endif()

# The kernels and the backend on a GPU; without one they skip, naming it.
function(oasiskv_gpu_test name)
  oasiskv_test(NAME ${name} LABEL gpu
    SOURCES ${ARGN}
    DEPS oasiskv::bench_rig oasiskv::working_set oasiskv::working_set_kernels oasiskv::cuda)
endfunction()

oasiskv_gpu_test(gpu_select_test gpu/select_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_transfer_test gpu/transfer_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_local_block_test gpu/local_block_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_dense_test gpu/dense_test.cc gpu/transfer_rig.cc)
oasiskv_gpu_test(gpu_score_test gpu/score_kernel_test.cc gpu/score_rig.cc)
oasiskv_gpu_test(gpu_topk_test gpu/topk_kernel_test.cc gpu/score_rig.cc)

oasiskv_gpu_test(gpu_processors_test gpu/processors_test.cc gpu/which_processor.cu)

oasiskv_test(NAME gpu_working_set_test LABEL gpu TIMEOUT 180
  SOURCES gpu/gpu_working_set_test.cc gpu/gpu_devices_test.cc gpu/gpu_enqueue_test.cc gpu/gpu_faults_test.cc gpu/gpu_graph_test.cc
          gpu/gpu_limits_test.cc gpu/gpu_drive.cc gpu/gpu_drive_compare.cc gpu/gpu_drive_predict.cc gpu/gpu_inputs.cc
          gpu/transfer_rig.cc
  DEPS oasiskv::bench_rig oasiskv::gpu_working_set)

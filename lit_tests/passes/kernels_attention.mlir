// RUN: pcp-opt %s --pcp-kernels=set=x86-64-v4 --allow-unregistered-dialect | filecheck %s

// CHECK: "stream.executable"() <{sym_name = "pcp_kernels_attention", sym_visibility = "private"}>
// CHECK: hal.executable.objects = #hal.executable.objects<{#hal.executable.target<"llvm-cpu", "embedded-elf-x86_64"> = [#hal.executable.object<{path = "pcp-{{[0-9a-f]+}}-attention-x86-64-v4.o"}>]}>

// Slices of one product are read in place: the numbers behind the shape are where a
// sequence, a head and a row of each begin. The mask becomes how far ahead a row sees.
// CHECK-LABEL: @causal
// CHECK-NOT: x64x64x
// CHECK: %[[Y:.*]]:3 = "flow.dispatch"(%arg0, %arg0, %arg0) {entry_points = [@pcp_kernels_attention::@pcp_attention_2_64_64_16_0_{{[0-9]+}}_{{[0-9]+}}_0_6144_16_96_32_6144_16_96_64_6144_16_96_6]
// CHECK-SAME: -> (tensor<3x64x2x16xf32>, tensor<6x64xf32>, tensor<6x64xf32>)
// CHECK-DAG: stablehlo.transpose %[[Y]]#0, dims = [0, 2, 1, 3] : (tensor<3x64x2x16xf32>) -> tensor<3x2x64x16xf32>
// CHECK-DAG: stablehlo.reshape %[[Y]]#1 : (tensor<6x64xf32>) -> tensor<3x2x64xf32>
func.func @causal(%x: tensor<3x64x96xf32>) -> (tensor<3x2x64x16xf32>, tensor<3x2x64xf32>) {
  %q0 = stablehlo.slice %x [0:3, 0:64, 0:32] : (tensor<3x64x96xf32>) -> tensor<3x64x32xf32>
  %k0 = stablehlo.slice %x [0:3, 0:64, 32:64] : (tensor<3x64x96xf32>) -> tensor<3x64x32xf32>
  %v0 = stablehlo.slice %x [0:3, 0:64, 64:96] : (tensor<3x64x96xf32>) -> tensor<3x64x32xf32>
  %q = stablehlo.reshape %q0 : (tensor<3x64x32xf32>) -> tensor<3x64x2x16xf32>
  %k = stablehlo.reshape %k0 : (tensor<3x64x32xf32>) -> tensor<3x64x2x16xf32>
  %v = stablehlo.reshape %v0 : (tensor<3x64x32xf32>) -> tensor<3x64x2x16xf32>
  %s = stablehlo.dot_general %q, %k, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3] : (tensor<3x64x2x16xf32>, tensor<3x64x2x16xf32>) -> tensor<3x2x64x64xf32>
  %quarter = stablehlo.constant dense<0.25> : tensor<3x2x64x64xf32>
  %scaled = stablehlo.multiply %s, %quarter : tensor<3x2x64x64xf32>
  %rows = stablehlo.iota dim = 0 : tensor<64x64xi32>
  %columns = stablehlo.iota dim = 1 : tensor<64x64xi32>
  %seen = stablehlo.compare GE, %rows, %columns : (tensor<64x64xi32>, tensor<64x64xi32>) -> tensor<64x64xi1>
  %mask = stablehlo.broadcast_in_dim %seen, dims = [2, 3] : (tensor<64x64xi1>) -> tensor<3x2x64x64xi1>
  %hidden = stablehlo.constant dense<0xFF800000> : tensor<3x2x64x64xf32>
  %scores = stablehlo.select %mask, %scaled, %hidden : tensor<3x2x64x64xi1>, tensor<3x2x64x64xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%scores init: %low) applies stablehlo.maximum across dimensions = [3] : (tensor<3x2x64x64xf32>, tensor<f32>) -> tensor<3x2x64xf32>
  %m1 = stablehlo.broadcast_in_dim %m, dims = [0, 1, 2] : (tensor<3x2x64xf32>) -> tensor<3x2x64x64xf32>
  %less = stablehlo.subtract %scores, %m1 : tensor<3x2x64x64xf32>
  %e = stablehlo.exponential %less : tensor<3x2x64x64xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [3] : (tensor<3x2x64x64xf32>, tensor<f32>) -> tensor<3x2x64xf32>
  %y = stablehlo.dot_general %e, %v, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1] : (tensor<3x2x64x64xf32>, tensor<3x64x2x16xf32>) -> tensor<3x2x64x16xf32>
  return %y, %l : tensor<3x2x64x16xf32>, tensor<3x2x64xf32>
}

// Something else reads the exponentials.
// CHECK-LABEL: @weights
// CHECK: stablehlo.exponential
// CHECK: stablehlo.dot_general
func.func @weights(%q: tensor<2x64x16xf32>, %k: tensor<2x64x16xf32>, %v: tensor<2x64x16xf32>) -> (tensor<2x64x16xf32>, tensor<2x64xf32>, tensor<2x64x64xf32>) {
  %s = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<2x64x16xf32>, tensor<2x64x16xf32>) -> tensor<2x64x64xf32>
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %m = stablehlo.reduce(%s init: %low) applies stablehlo.maximum across dimensions = [2] : (tensor<2x64x64xf32>, tensor<f32>) -> tensor<2x64xf32>
  %m1 = stablehlo.broadcast_in_dim %m, dims = [0, 1] : (tensor<2x64xf32>) -> tensor<2x64x64xf32>
  %less = stablehlo.subtract %s, %m1 : tensor<2x64x64xf32>
  %e = stablehlo.exponential %less : tensor<2x64x64xf32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add across dimensions = [2] : (tensor<2x64x64xf32>, tensor<f32>) -> tensor<2x64xf32>
  %y = stablehlo.dot_general %e, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1] : (tensor<2x64x64xf32>, tensor<2x64x16xf32>) -> tensor<2x64x16xf32>
  return %y, %l, %e : tensor<2x64x16xf32>, tensor<2x64xf32>, tensor<2x64x64xf32>
}

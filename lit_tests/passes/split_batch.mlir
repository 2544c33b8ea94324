// RUN: pcp-opt %s --pcp-split-batch=weights=5,2,1 | filecheck %s
// RUN: pcp-opt %s --pcp-split-batch | filecheck %s --check-prefix=MEASURED
// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-split-batch{weights=5,2,1},pcp-propagate-sharding,pcp-insert-reshards,pcp-partition)' | filecheck %s --check-prefix=CUT
// RUN: pcp-opt %s --pcp-split-batch=bytes-per-sample=100 | filecheck %s --check-prefix=MEMORY
// RUN: pcp-opt %s --pass-pipeline='builtin.module(pcp-split-batch{weights=900,2,1 least=1})' | filecheck %s --check-prefix=LEAST

// CHECK: split = #pcp.split<"dp", [5, 2, 1]>
// Throughputs 2 : 1 : 1.
// MEASURED: split = #pcp.split<"dp", [4, 2, 2]>
// CUT-LABEL: module @a
// CUT: %arg0: tensor<5x4xf32>
// CUT-LABEL: module @b
// CUT: %arg0: tensor<2x4xf32>
// CUT-LABEL: module @c
// CUT: %arg0: tensor<1x4xf32>
// Without `least` two of them get nothing, which is an error.
// LEAST: split = #pcp.split<"dp", [6, 1, 1]>
// The first device has room for three samples.
// MEMORY: split = #pcp.split<"dp", [3, 3, 2]>
"pcp.target"() {arch = "x86_64", caps = {}, driver = "local", sym_name = "cpu"} : () -> ()
"pcp.device"() {memory = 300 : i64, sym_name = "a", target = @cpu, throughput = {f32 = 2.0e9}} : () -> ()
"pcp.device"() {memory = 900 : i64, sym_name = "b", target = @cpu, throughput = {f32 = 1.0e9}} : () -> ()
"pcp.device"() {memory = 900 : i64, sym_name = "c", target = @cpu, throughput = {f32 = 1.0e9}} : () -> ()
"pcp.mesh"() {axes = [#pcp.axis<"dp", 3>], devices = [@a, @b, @c], sym_name = "m"} : () -> ()
func.func @main(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<4xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0] : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

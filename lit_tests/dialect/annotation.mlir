// RUN: pcp-opt %s | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s
// RUN: pcp-opt %s --emit-bytecode | pcp-opt | filecheck %s
// RUN: pcp-opt %s --canonicalize --cse | filecheck %s --check-prefix=PURE

// CHECK-LABEL: func.func @annotations
// CHECK-SAME: pcp.sharding = #pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>
// PURE-LABEL: func.func @annotations
func.func @annotations(%x: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["dp"], []], [], []>}) -> tensor<8x4xf32> {
  // CHECK: "pcp.constraint"(%{{.*}}) {sharding = #pcp.sharding<@m, [#pcp.dim<["dp", "tp"], 1 : i64, 0 : i64>, []], ["pp"], ["ep"]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %0 = "pcp.constraint"(%x) {sharding = #pcp.sharding<@m, [#pcp.dim<["dp", "tp"], 1, 0>, []], ["pp"], ["ep"]>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: "pcp.reshard"(%{{.*}}) {sharding = #pcp.sharding<@m, {{\[\[}}], ["tp"]], [], []>}
  %1 = "pcp.reshard"(%0) {sharding = #pcp.sharding<@m, [[], ["tp"]], [], []>} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: "pcp.barrier_prop"(%{{.*}}) {direction = "none"}
  // PURE-COUNT-1: pcp.barrier_prop
  // PURE-NOT: pcp.barrier_prop
  %2 = "pcp.barrier_prop"(%1) {direction = "none"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  %3 = "pcp.barrier_prop"(%1) {direction = "none"} : (tensor<8x4xf32>) -> tensor<8x4xf32>
  // CHECK: #pcp.precision<bf16, f32, f32>
  %4 = stablehlo.add %2, %3 {pcp.precision = #pcp.precision<bf16, f32, f32>} : tensor<8x4xf32>
  return %4 : tensor<8x4xf32>
}

// CHECK-LABEL: func.func @parts
// PURE-LABEL: func.func @parts
func.func @parts(%x: tensor<8x4xf32>) -> tensor<8x4xf32> {
  // CHECK: "pcp.to_part"(%{{.*}}) {sharding = #pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  // PURE-COUNT-1: pcp.to_part
  // PURE-NOT: pcp.to_part
  %0 = "pcp.to_part"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  %1 = "pcp.to_part"(%x) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>} : (tensor<8x4xf32>) -> tensor<4x4xf32>
  %2 = stablehlo.add %0, %1 : tensor<4x4xf32>
  // CHECK: "pcp.from_part"(%{{.*}}) {sharding = #pcp.sharding<@m, {{\[\[}}"dp"], []], [], []>} : (tensor<4x4xf32>) -> tensor<8x4xf32>
  %3 = "pcp.from_part"(%2) {sharding = #pcp.sharding<@m, [["dp"], []], [], []>} : (tensor<4x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}

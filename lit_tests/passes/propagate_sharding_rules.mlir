// RUN: pcp-opt %s --pcp-propagate-sharding | filecheck %s
// RUN: pcp-opt %s --pcp-propagate-sharding --pcp-insert-reshards --pcp-partition --pcp-verify-plan | filecheck %s --check-prefix=LOCAL

// Rules that users write: text as Shardy's, on a custom call.
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()

// CHECK-LABEL: func.func @rows
// CHECK-SAME: -> (tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, {{\[\["x"\], \[\]\]}}, [], []>})
// CHECK: stablehlo.custom_call @dot
// LOCAL-LABEL: module @m_0
// LOCAL: func.func @rows(%[[A:.*]]: tensor<4x4xf32>
// LOCAL-NEXT: stablehlo.custom_call @dot(%[[A]], %{{.*}}) : (tensor<4x4xf32>, tensor<4x16xf32>) -> tensor<4x16xf32>
// LOCAL-NEXT: return
func.func @rows(%a: tensor<8x4xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>},
                %b: tensor<4x16xf32>) -> tensor<8x16xf32> {
  %0 = stablehlo.custom_call @dot(%a, %b) {pcp.sharding_rule = "([i, j], [j, k])->([i, k]) {i=8, j=4, k=16} reduction={j}, custom"} : (tensor<8x4xf32>, tensor<4x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// A factor of a reduction leaves partial sums, which are joined.
// LOCAL: func.func @summed
// LOCAL: %[[P:.*]] = stablehlo.custom_call @dot(%{{.*}}, %{{.*}}) : (tensor<8x32xf32>, tensor<32x16xf32>) -> tensor<8x16xf32>
// LOCAL-NEXT: "pcp.all_reduce"(%[[P]]) {axes = ["x"], kind = "sum"
func.func @summed(%a: tensor<8x64xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["x"]], [], []>},
                  %b: tensor<64x16xf32> {pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>}) -> (tensor<8x16xf32> {pcp.sharding = #pcp.sharding<@m, [[], []], [], []>}) {
  %0 = stablehlo.custom_call @dot(%a, %b) {pcp.sharding_rule = "([i, j], [j, k])->([i, k]) reduction={j}"} : (tensor<8x64xf32>, tensor<64x16xf32>) -> tensor<8x16xf32>
  return %0 : tensor<8x16xf32>
}

// Dimensions of two factors, any number of them in front, and factors that one side
// alone has, or that are not to be cut: these are gathered.
// LOCAL: func.func @merged
// LOCAL: stablehlo.custom_call @merge(%{{.*}}) : (tensor<3x2x6xf32>) -> tensor<3x12xf32>
// LOCAL: func.func @whole
// LOCAL: "pcp.all_gather"
// LOCAL: stablehlo.custom_call @scan(%{{.*}}) : (tensor<8xf32>) -> tensor<8xf32>
// LOCAL: func.func @one_side
// LOCAL: "pcp.all_gather"
// LOCAL: stablehlo.custom_call @norm(%{{.*}}) : (tensor<8xf32>) -> tensor<f32>
func.func @merged(%a: tensor<3x4x6xf32> {pcp.sharding = #pcp.sharding<@m, [[], ["x"], []], [], []>}) -> tensor<3x24xf32> {
  %0 = stablehlo.custom_call @merge(%a) {pcp.sharding_rule = "([..., i, j])->([..., ij])"} : (tensor<3x4x6xf32>) -> tensor<3x24xf32>
  return %0 : tensor<3x24xf32>
}
func.func @whole(%a: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["x"]], [], []>}) -> tensor<8xf32> {
  %0 = stablehlo.custom_call @scan(%a) {pcp.sharding_rule = "([i])->([i]) need_replication={i}"} : (tensor<8xf32>) -> tensor<8xf32>
  return %0 : tensor<8xf32>
}
func.func @one_side(%a: tensor<8xf32> {pcp.sharding = #pcp.sharding<@m, [["x"]], [], []>}) -> tensor<f32> {
  %0 = stablehlo.custom_call @norm(%a) {pcp.sharding_rule = "([i])->([])"} : (tensor<8xf32>) -> tensor<f32>
  return %0 : tensor<f32>
}

// RUN: pcp-opt %s --cse | filecheck %s
// RUN: pcp-opt %s --pass-pipeline='builtin.module(func.func(cse))' | filecheck %s
// RUN: PCP_ROUNDTRIP | filecheck %s --check-prefix=ROUND
// RUN: pcp-opt %s --emit-bytecode | pcp-opt - --cse | filecheck %s
// RUN: cat %s | pcp-opt -cse --mlir-print-op-generic | filecheck %s --check-prefix=GENERIC

// CHECK-LABEL: func.func @main
// CHECK: stablehlo.add
// CHECK-NOT: stablehlo.add
// CHECK: stablehlo.multiply
// ROUND-COUNT-2: stablehlo.add
// GENERIC: "stablehlo.add"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>)
func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  %1 = stablehlo.add %a, %a : tensor<4xf32>
  %2 = stablehlo.multiply %0, %1 : tensor<4xf32>
  return %2 : tensor<4xf32>
}
